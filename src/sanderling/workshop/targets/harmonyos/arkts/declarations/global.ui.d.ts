// Words of declarative pages: written from the public reference, only what the performance page uses.
declare const Entry: ClassDecorator;
declare const Component: ClassDecorator;
declare const State: PropertyDecorator;
declare const Prop: PropertyDecorator;
declare const Builder: MethodDecorator;
declare const Concurrent: MethodDecorator;

declare enum FontWeight { Lighter, Normal, Regular, Medium, Bold, Bolder }
declare enum FlexAlign { Start, Center, End, SpaceBetween, SpaceAround, SpaceEvenly }
declare enum HorizontalAlign { Start, Center, End }

declare type Length = string | number;
declare interface Padding { top?: Length; right?: Length; bottom?: Length; left?: Length }
declare interface StackOptions { space?: string | number }
declare interface ClickEvent { timestamp: number }

declare class CommonMethod<T> {
  width(value: Length): T;
  height(value: Length): T;
  padding(value: Padding | Length): T;
  margin(value: Padding | Length): T;
  backgroundColor(value: string | number): T;
  borderRadius(value: Length): T;
  layoutWeight(value: number | string): T;
  onClick(event: (event: ClickEvent) => void): T;
  enabled(value: boolean): T;
}
declare class CommonAttribute extends CommonMethod<CommonAttribute> {}
declare interface CommonInterface { (): CommonAttribute }
declare const CommonInstance: CommonAttribute;
declare class CustomComponent extends CommonAttribute {
  build(): void;
  aboutToAppear?(): void;
  aboutToDisappear?(): void;
}

declare class TextAttribute extends CommonMethod<TextAttribute> {
  fontSize(value: number | string): TextAttribute;
  fontColor(value: number | string): TextAttribute;
  fontWeight(value: number | FontWeight | string): TextAttribute;
}
declare const Text: (content?: string) => TextAttribute;
declare const TextInstance: TextAttribute;

declare class ColumnAttribute extends CommonMethod<ColumnAttribute> {
  alignItems(value: HorizontalAlign): ColumnAttribute;
}
declare const Column: (value?: StackOptions) => ColumnAttribute;
declare const ColumnInstance: ColumnAttribute;

declare class RowAttribute extends CommonMethod<RowAttribute> {
  justifyContent(value: FlexAlign): RowAttribute;
}
declare const Row: (value?: StackOptions) => RowAttribute;
declare const RowInstance: RowAttribute;

declare class ButtonAttribute extends CommonMethod<ButtonAttribute> {}
declare const Button: (label: string) => ButtonAttribute;
declare const ButtonInstance: ButtonAttribute;

declare class ScrollAttribute extends CommonMethod<ScrollAttribute> {}
declare const Scroll: () => ScrollAttribute;
declare const ScrollInstance: ScrollAttribute;

declare class DividerAttribute extends CommonMethod<DividerAttribute> {}
declare const Divider: () => DividerAttribute;
declare const DividerInstance: DividerAttribute;

declare class ListAttribute extends CommonMethod<ListAttribute> {}
declare const List: (value?: StackOptions) => ListAttribute;
declare const ListInstance: ListAttribute;

declare class ListItemAttribute extends CommonMethod<ListItemAttribute> {}
declare const ListItem: () => ListItemAttribute;
declare const ListItemInstance: ListItemAttribute;

declare const ForEach: <T>(
  items: Array<T>, itemGenerator: (item: T, index: number) => void, keyGenerator?: (item: T, index: number) => string
) => void;
